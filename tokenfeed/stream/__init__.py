"""What a stream is: all that rows follow from.

stream     the one value: sources, stages, redactions
stage      what these are
schedule   where stages begin
order      the interface of orders
identity   a hash of a stage
position   which rows a rank reads
planes     data beside the tokens of rows
"""

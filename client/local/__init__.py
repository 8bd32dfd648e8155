"""Local files as a dataset, without a server: the only package of the client that uses the server's
packages, and only when a feed is used.
"""

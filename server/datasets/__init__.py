"""From a name to a dataset that is checked and fingerprinted. Knows nothing of gRPC.

options.py        what each option of a dataset takes, on any command line
sources/          words of a command line -> names and files
opening.py        files -> a Dataset: the way of all that follows
content.py        reads the tokens once, or a sample of many: fingerprint, digest, checks
plausibility.py   whether these are tokens, by a sample: no mask, no floats, nothing compressed
                  (server/storage/halves.py finds halves of wider tokens)
shared_scan.py    one such reading for all processes of a machine
planes/           planes in files beside the tokens: loss masks
redactions/       tokens that are taken out, and erased
dataset.py        Dataset: what is served under a name; it is described and polled
warmup.py         preloads datasets while they are served
provenance/       where rows come from, and where documents went
"""

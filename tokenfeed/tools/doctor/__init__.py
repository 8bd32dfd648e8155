"""tokenfeed doctor: what keeps a trainer's machine from its servers, layer by layer.

run          the command: all servers at once, and the report
examination  one server, layer by layer
findings     a problem with what was seen and what to change; exit codes
network      addresses as they were typed, TCP, and the first bytes of HTTP/2
proxy        whether a proxy of the environment explains a failure
tls          the handshake, and what the certificate says
rpc          the first calls: token, contract, clock
replicas     whether servers agree with each other
speed        how fast rows arrive, and what limits them
report       all of it as text, or as JSON
"""

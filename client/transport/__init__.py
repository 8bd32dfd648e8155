"""From a target to connections. Only this package of the client imports grpc.

addresses.py     addresses of servers, as users write them
resolver.py      targets -> addresses
replicas.py      the replicas of a feed, and the connection to each
channel.py       a connection: its options, and calls as bytes -> bytes
credentials.py   TLS files and bearer tokens of a connection
tls_check.py     why a first connection failed, if TLS may be the reason
timeouts.py      the timeouts that a user sets; source/failover.py adapts them
"""

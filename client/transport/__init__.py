"""Addresses, credentials, channels and replicas. The only part of the client that imports grpc."""

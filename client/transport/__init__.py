"""Addresses, credentials, channels and replicas. Only this package of the client imports grpc."""

"""gRPC: listens, admits calls, answers them and encodes frames. Tokens come from datasets/.

activity/ counts what streams do, and monitoring/ shows it.
"""

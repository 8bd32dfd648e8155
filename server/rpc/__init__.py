"""gRPC: listens, admits calls, answers them and encodes frames. Tokens come from datasets/.

activity.py counts what streams do, and monitoring/ shows it.
"""

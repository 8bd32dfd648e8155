"""gRPC: listens, admits calls, answers them and encodes frames. Tokens come from datasets/."""

"""gRPC: listens, admits calls, answers them and makes frames. Tokens come from datasets/."""

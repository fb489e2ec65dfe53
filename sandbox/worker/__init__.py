"""What runs inside a worker process: the identical harness for reference and candidate. Never
the supervisor.
"""

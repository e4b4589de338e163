"""Successors, threaded through a block of calls, and watched for when one is lost."""

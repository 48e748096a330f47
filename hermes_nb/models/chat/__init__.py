"""Endpoints that speak chat.completions: requests, streamed replies, what goes wrong."""

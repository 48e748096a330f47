"""Client for chat.completions endpoints: requests, streamed replies, errors and retries."""

"""Scheduled prompts and notebooks."""

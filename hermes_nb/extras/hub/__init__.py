"""Tools for administrators of many users: the proxy, the audit, signed skills."""

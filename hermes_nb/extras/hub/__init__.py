"""What an administrator of many users runs: the proxy, the audit, signed skills."""

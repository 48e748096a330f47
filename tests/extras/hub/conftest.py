"""A proxy of a hub with a provider behind it, a server of tools, and a policy that is root's."""

from tests.contract.mcp.conftest import known, with_server
from tests.contract.test_policy_of_root import prefix
from tests.extras.hub.proxies import hub, serving

__all__ = ["hub", "known", "prefix", "serving", "with_server"]

"""Says what a laboratory found about sensors, over the Model Context Protocol."""

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # mcp 1
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("calibration")
CERTIFICATES = {
    "bench-2": "No deviation above 0.2 K.",
    "bench-3": "Reports degrees Fahrenheit, in a column that is meant for Celsius.",
    "door-1": "Reads 0.5 K too low below 15 °C.",
}


@server.tool()
def certificate(sensor: str) -> str:
    """Return what the laboratory found about a sensor, such as door-1."""
    return CERTIFICATES.get(sensor, f"no certificate; there are {', '.join(CERTIFICATES)}")


server.run()

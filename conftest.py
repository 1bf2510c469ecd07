"""Leave out the doctests of integrations whose framework is not installed."""

from importlib.util import find_spec

FRAMEWORKS = {
    "haystack": "haystack",
    "haystack_filters": "haystack",
    "langchain": "langchain_core",
    "llama_index": "llama_index",
    "llama_index_filters": "llama_index",
    "mcp_http": "mcp",
    "mcp_results": "mcp",
    "mcp_server": "mcp",
    "mteb": "mteb",
    "pyterrier": "pyterrier",
}

collect_ignore = [
    f"src/citadel/integrations/{module}.py"
    for module, package in FRAMEWORKS.items()
    if find_spec(package) is None
]

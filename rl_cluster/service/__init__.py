"""The search service without Ray: what is asked and answered, named indexes, HTTP, MCP; actors/search_service.py deploys it."""

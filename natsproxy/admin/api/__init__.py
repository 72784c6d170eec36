"""The admin API: it shows and changes proxies, connections, rules and captures."""

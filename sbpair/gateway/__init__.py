"""A door for clients of any language: sends go through `runtime.failover`, everything else to the primary."""

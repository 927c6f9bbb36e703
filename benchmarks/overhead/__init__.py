"""What a request without session pays for the plugin, as a whole: HTTP, scheduler and worker, in instructions."""

"""From flags to queued generations: options -> settings -> config -> facts -> preflight -> plan -> enqueue."""

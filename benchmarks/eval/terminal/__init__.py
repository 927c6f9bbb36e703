"""Small tasks in a shell, one after the other in one session, as CWL is evaluated."""

"""The state of one session: transcript, fragments, omissions, branches, and the messages that they render to."""

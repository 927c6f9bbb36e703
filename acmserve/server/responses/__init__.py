"""The Responses API in front of the sessions: items to a chat, answers to items and events, compaction."""

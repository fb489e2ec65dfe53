"""From a task and its journal to candidates: who is asked, what for, and what they replied."""

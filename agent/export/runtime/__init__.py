"""What every exported package carries: dispatch, fallback, loading. It needs torch alone."""

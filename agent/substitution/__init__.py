"""From a library to a user's model: where its operators fit, whether they are right and faster."""

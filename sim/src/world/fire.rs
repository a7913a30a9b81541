//! Interactions as a user starts them: commands, buttons, modals, and what a command asks while it is typed.

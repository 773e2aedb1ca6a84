//! Recorded calls of clients, and the checkers that judge them.

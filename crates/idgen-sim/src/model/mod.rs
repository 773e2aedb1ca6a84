//! The rules of fencing, worker ids and grants to a fleet, as steps between states.

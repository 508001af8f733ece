//! A session never loses an answered turn, and goes on after any interruption as if there had
//! been none.

mod budget;
mod daemon;
mod damage;
mod growth;
mod kills;
mod long;
mod schedules;

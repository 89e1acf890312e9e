"""Systems that can be evaluated, one file per kind; each plays a question and hands back a trajectory."""

"""Tables, plots, widgets and reports of a run; no TVM."""

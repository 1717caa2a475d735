"""Training runs on real data. Each writes plain records; `rotationout.report` turns those into figures and a page."""

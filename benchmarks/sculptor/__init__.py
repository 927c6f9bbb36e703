"""`acmserve bench sculptor`: what context tools save and cost."""

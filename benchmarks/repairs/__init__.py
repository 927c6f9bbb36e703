"""`acmserve bench repairs`: is a repaired cache right for a question that the repair did not see?"""

"""Facts about a dataset, for people.

examine            contents, encoding and defects as plain values
episode_metadata   names and values for conditions
recorded_claims    recorded statistics compared with the data
text               the facts as text
page               the facts as a page
check_page         the findings of `check` as a page
"""

; Elements of JSX are calls.
(jsx_opening_element name: (identifier) @call @call.name)
(jsx_self_closing_element name: (identifier) @call @call.name)

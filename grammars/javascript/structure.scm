; What only JavaScript has.
(field_definition property: (_) @definition.name value: (_)? @body) @definition
(class_heritage (identifier) @type)

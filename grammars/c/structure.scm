; What is only so in C.
(struct_specifier name: (_) @definition.name body: (_)) @definition
(union_specifier name: (_) @definition.name body: (_)) @definition

; What only TypeScript has.
(abstract_class_declaration name: (_) @definition.name body: (_) @body)
  @definition.container @signature
(internal_module name: (_) @definition.name body: (_) @body) @definition.container @signature
(module name: (_) @definition.name body: (_) @body) @definition.container @signature
(function_signature name: (_) @definition.name) @definition.function @signature
(method_signature name: (_) @definition.name) @definition.function @signature
(abstract_method_signature name: (_) @definition.name) @definition.function @signature
(interface_declaration name: (_) @definition.name) @definition
(type_alias_declaration name: (_) @definition.name) @definition
(enum_declaration name: (_) @definition.name) @definition
(public_field_definition name: (_) @definition.name value: (_)? @body) @definition
(property_signature) @definition
(import_alias) @import

(type_identifier) @type
(class_heritage (extends_clause value: (identifier) @type))

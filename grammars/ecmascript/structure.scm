; What JavaScript and TypeScript have in common.

; Definitions
(function_declaration name: (_) @definition.name body: (_) @body) @definition.function @signature
(generator_function_declaration name: (_) @definition.name body: (_) @body)
  @definition.function @signature
(method_definition name: (_) @definition.name body: (_) @body) @definition.function @signature
(class_declaration name: (_) @definition.name body: (_) @body) @definition.container @signature
(variable_declarator
  name: (identifier) @definition.name
  value: [
    (arrow_function body: (_) @body)
    (function_expression body: (_) @body)
    (generator_function body: (_) @body)
  ]) @definition.function @signature
(variable_declarator name: (identifier) @definition.name value: (class body: (_) @body))
  @definition.container @signature
(assignment_expression
  left: [
    (identifier) @definition.name
    (member_expression property: (_) @definition.name)
  ]
  right: [
    (arrow_function body: (_) @body)
    (function_expression body: (_) @body)
  ]) @definition.function @signature
(pair
  key: (property_identifier) @definition.name
  value: [
    (arrow_function body: (_) @body)
    (function_expression body: (_) @body)
  ]) @definition.function @signature
(decorator) @signature
(program
  (lexical_declaration
    (variable_declarator name: (identifier) @definition.name value: (_)? @body) @definition))
(program
  (export_statement
    declaration: (lexical_declaration
      (variable_declarator name: (identifier) @definition.name value: (_)? @body) @definition)))

(import_statement) @import
(export_statement !declaration !value) @import
((call_expression function: (identifier) @_name) @import
  (#eq? @_name "require"))
(call_expression function: (import)) @import

; What decides
(if_statement condition: (_) @condition)
(while_statement condition: (_) @condition)
(do_statement condition: (_) @condition)
(for_statement body: (_) @body) @condition
(for_in_statement body: (_) @body) @condition
(switch_statement body: (_) @body) @condition
(switch_case value: (_) @condition)
(ternary_expression condition: (_) @condition)
(catch_clause body: (_) @body) @condition

; What comes out
(return_statement) @return
(throw_statement) @return
(yield_expression) @return
(break_statement) @return
(continue_statement) @return

(variable_declarator value: (_)) @assignment
(assignment_expression) @assignment
(augmented_assignment_expression) @assignment
(update_expression) @assignment

; Calls: the name, not the whole of a chain
(call_expression function: (identifier) @call @call.name)
(call_expression function: (member_expression property: (_) @call @call.name))
(call_expression
  function: (member_expression
    object: [(identifier) (this)] @call.owner
    property: (_) @call @call.name))
(call_expression function: (super) @call)
(new_expression constructor: (identifier) @call @call.name)
(new_expression constructor: (member_expression property: (_) @call @call.name))

; Tests and what they assert
((call_expression function: [
    (identifier) @_name
    (member_expression object: (identifier) @_name)]) @test
  (#match? @_name "^(it|test|describe|expect|assert)$"))

[
  (string)
  (template_string)
  (number)
  (regex)
  (true)
  (false)
  (null)
] @literal

(comment) @comment
((comment) @docstring (#match? @docstring "^/\\*\\*"))

; Definitions
(function_definition name: (_) @definition.name body: (_) @body) @definition.function @signature
(class_definition name: (_) @definition.name body: (_) @body) @definition.container @signature
(decorator) @signature
(type_alias_statement left: (type (identifier) @definition.name)) @definition
(module
  (expression_statement
    (assignment left: (identifier) @definition.name right: (_)? @body) @definition))
(class_definition
  body: (block
    (expression_statement
      (assignment left: (identifier) @definition.name right: (_)? @body) @definition)))

(import_statement) @import
(import_from_statement) @import
(future_import_statement) @import

; What decides
(if_statement consequence: (_) @body) @condition
(elif_clause consequence: (_) @body) @condition
(while_statement body: (_) @body) @condition
(for_statement body: (_) @body) @condition
(with_statement body: (_) @body) @condition
(except_clause (block) @body) @condition
(match_statement body: (_) @body) @condition
(case_clause consequence: (_) @body) @condition
(conditional_expression) @condition
(for_in_clause) @condition
(if_clause) @condition

; What comes out
(return_statement) @return
(raise_statement) @return
(yield) @return
(break_statement) @return
(continue_statement) @return

(assignment) @assignment
(augmented_assignment) @assignment
(named_expression) @assignment
(delete_statement) @assignment

; Calls: the name, not the whole of a chain
(call function: (identifier) @call @call.name)
(call function: (attribute attribute: (_) @call @call.name))
(call function: (attribute object: (identifier) @call.owner attribute: (_) @call @call.name))

; Tests and what they assert
((function_definition name: (_) @_name body: (_) @body) @test
  (#match? @_name "^test"))
((class_definition name: (_) @_name body: (_) @body) @test
  (#match? @_name "^Test|Tests?(Case)?$"))
(assert_statement) @test
((call function: [
    (identifier) @_name
    (attribute attribute: (_) @_name)]) @test
  (#match? @_name "^assert"))
((call function: (attribute
    object: (identifier) @_object
    attribute: (identifier) @_name)) @test
  (#eq? @_object "pytest") (#match? @_name "^(raises|warns|approx|fail|skip)$"))

(type (identifier) @type)
(type (subscript value: (identifier) @type))
(generic_type (identifier) @type)
(class_definition superclasses: (argument_list (identifier) @type))

[
  (string)
  (integer)
  (float)
  (true)
  (false)
  (none)
] @literal

(comment) @comment

(module . (comment)* . (expression_statement . (string) @docstring .))
(class_definition body: (block . (expression_statement . (string) @docstring .)))
(function_definition body: (block . (expression_statement . (string) @docstring .)))

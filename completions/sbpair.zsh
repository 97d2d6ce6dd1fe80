#compdef sbpair

_sbpair_completion() {
  eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _SBPAIR_COMPLETE=complete_zsh sbpair)
}

compdef _sbpair_completion sbpair

package manpage

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Page is a manual page, in the macros of man(7).
func (m *Manual) Page(cmd *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"User Commands\"\n", strings.ToUpper(pageName(cmd)), "hbmfs "+m.Version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n.SH SYNOPSIS\n", escape(pageName(cmd)), escape(cmd.Short))
	for i, line := range usages(cmd) {
		if i > 0 {
			b.WriteString(".br\n")
		}
		fmt.Fprintf(&b, "\\fB%s\\fR\n", escape(line))
	}
	b.WriteString(".SH DESCRIPTION\n")
	about := cmd.Long
	if about == "" {
		about = cmd.Short + "."
	}
	for _, p := range blocks(about) {
		writeBlock(&b, p)
	}
	for _, group := range flagGroups() {
		title := fmt.Sprintf(".SH %q\n", strings.ToUpper(group.title))
		flagsOf(cmd, group.advanced, func(f *pflag.Flag, value, usage string) {
			if value != "" {
				value = " \\fI" + escape(value) + "\\fR"
			}
			fmt.Fprintf(&b, "%s.TP\n\\fB%s\\fR%s\n%s\n", title, escape(names(f)), value, escape(usage))
			title = ""
		})
	}
	for _, s := range m.sections(cmd) {
		fmt.Fprintf(&b, ".SH %q\n", strings.ToUpper(s.title))
		for _, i := range s.items {
			fmt.Fprintf(&b, ".TP\n\\fB%s\\fR\n%s\n", escape(i.Term), escape(i.Text))
		}
	}
	if cmd.Example != "" {
		b.WriteString(".SH EXAMPLES\n")
		for _, p := range blocks(cmd.Example) {
			writeBlock(&b, p)
		}
	}
	if pages := see(cmd); len(pages) > 0 {
		b.WriteString(".SH \"SEE ALSO\"\n")
		for i, name := range pages {
			fmt.Fprintf(&b, ".BR %s (1)%s\n", escape(name), map[bool]string{true: ","}[i < len(pages)-1])
		}
	}
	return b.String()
}

func writeBlock(b *strings.Builder, p block) {
	if !p.pre {
		fmt.Fprintf(b, ".PP\n%s\n", escape(p.text))
		return
	}
	fmt.Fprintf(b, ".PP\n.RS 4\n.nf\n%s\n.fi\n.RE\n", escape(p.text))
}

// escape makes text of a manual page of plain text: hyphens that can be copied, and no line that begins as a request.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

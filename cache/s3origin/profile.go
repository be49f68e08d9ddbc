package s3origin

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/ini.v1"
)

// profile is a section of AWS's shared files.
type profile struct {
	name    string
	named   bool // by somebody: it is not "default" because nobody said anything
	files   []string
	hasKeys bool // or says how to get them
}

// String names a profile and the files that were looked at.
func (p profile) String() string {
	return fmt.Sprintf("profile %q of %s", p.name, strings.Join(p.files, " and "))
}

// findProfile looks for a profile as [credentials.FileAWSCredentials] does, which merges the two files. name may be empty.
func findProfile(name string) (profile, error) {
	name = cmp.Or(name, os.Getenv("AWS_PROFILE"))
	p := profile{name: cmp.Or(name, "default"), named: name != ""}
	keys, others := map[string]bool{}, map[string]bool{}
	found := false
	for _, f := range []struct{ variable, base string }{{"AWS_CONFIG_FILE", "config"}, {"AWS_SHARED_CREDENTIALS_FILE", "credentials"}} {
		file, err := p.open(f.variable, f.base)
		if err != nil {
			return p, err
		}
		if file == nil {
			continue
		}
		for _, section := range file.Sections() {
			title, is := titleOf(section, f.base)
			if !is {
				continue
			}
			others[title] = true
			if title != p.name {
				continue
			}
			found = true
			for _, k := range section.Keys() {
				if strings.TrimSpace(k.Value()) != "" {
					keys[k.Name()] = true
				}
			}
		}
	}
	if p.named && !found {
		there := "no profile is there"
		if len(others) > 0 {
			there = "there are " + strings.Join(slices.Sorted(maps.Keys(others)), ", ")
		}
		return p, noCredentialsf("%s is not there: %s", p, there)
	}
	return p, p.settle(keys)
}

// titleOf gives the profile that a section of a file is of. Some sections are of none.
func titleOf(section *ini.Section, file string) (title string, is bool) {
	title = section.Name()
	if file == "config" && title != "default" {
		if title, is = strings.CutPrefix(title, "profile "); !is {
			return "", false
		}
	}
	return title, title != ini.DefaultSection // lines before the first section
}

// settle judges a profile by its keys that have values.
func (p *profile) settle(keys map[string]bool) error {
	id, secret := keys["aws_access_key_id"], keys["aws_secret_access_key"]
	switch {
	case id && !secret:
		return noCredentialsf("%s has an aws_access_key_id and no aws_secret_access_key", p)
	case secret && !id:
		return noCredentialsf("%s has an aws_secret_access_key and no aws_access_key_id", p)
	}
	p.hasKeys = id || keys["credential_process"]
	for k := range keys {
		p.hasKeys = p.hasKeys || strings.HasPrefix(k, "sso_")
	}
	if !p.hasKeys && keys["role_arn"] {
		return noCredentialsf("%s takes a role (role_arn), which hbmfs does not: name one with keys, credential_process or SSO", p)
	}
	return nil
}

// open reads one of the two files, nil where nobody named it and it is not there.
func (p *profile) open(variable, base string) (*ini.File, error) {
	name, said := os.Getenv(variable), variable+" names a file that cannot be read: "
	if name == "" {
		home, err := os.UserHomeDir()
		if err != nil { // no file but those that variables name
			p.files = append(p.files, fmt.Sprintf("~/.aws/%s (%v)", base, err))
			return nil, nil
		}
		name, said = filepath.Join(home, ".aws", base), ""
	}
	p.files = append(p.files, name)
	text, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && said == "":
		return nil, nil
	case err != nil:
		return nil, noCredentialsf("%s%v", said, err)
	}
	file, err := ini.Load(text)
	if err != nil { // which would show a line, and a secret in it
		return nil, noCredentialsf("%s is no file of profiles: a line of it is no [section] and no NAME = VALUE", name)
	}
	return file, nil
}

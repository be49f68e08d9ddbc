package address

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Shown is an address as errors show it, without what may be a secret: its query, and all of it that may be a login.
func Shown(source string) string {
	scheme, _, _ := strings.Cut(source, "://")
	if strings.Contains(source, "@") {
		return scheme + "://[...]"
	}
	shown, _, _ := strings.Cut(source, "?")
	return shown
}

// Options reads the query of an address, KEY=VALUE&KEY=VALUE. take has a function for each key, such as those of [Text] and [Truth]. An error
// never has a value in it, which may be a secret.
func Options(query string, take map[string]func(value string) error) error {
	options, err := url.ParseQuery(query)
	if err != nil { // url.URL.Query would leave out options that it cannot read, such as the endpoint
		return errors.New("its options cannot be read: want KEY=VALUE&KEY=VALUE")
	}
	for _, key := range slices.Sorted(maps.Keys(options)) {
		values, set := options[key], take[key]
		switch {
		case set == nil:
			known := slices.Sorted(maps.Keys(take))
			last := len(known) - 1
			return fmt.Errorf("unknown option %.40q: there are %s and %s", key, strings.Join(known[:last], ", "), known[last])
		case len(values) > 1:
			return fmt.Errorf("option %s is given twice", key)
		}
		if err := set(values[0]); err != nil {
			return fmt.Errorf("option %s %w", key, err)
		}
	}
	return nil
}

// Text takes an option's value. An empty one is refused, as an unset variable leaves it.
func Text(to *string) func(string) error {
	return func(value string) error {
		if value == "" {
			return errors.New("has no value")
		}
		*to = value
		return nil
	}
}

// Truth takes true or false. A key without a value is true.
func Truth(to *bool) func(string) error {
	return func(value string) error {
		switch value {
		case "true", "1", "":
			*to = true
		case "false", "0":
			*to = false
		default:
			return errors.New("cannot be read: want true or false")
		}
		return nil
	}
}

// Server reads the URL of a server, and of a path before its own. It leaves out a slash at the end.
func Server(text string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(text, "/"))
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && !strings.ContainsAny(text, "?#") {
		return u, nil
	}
	return nil, noServer(text)
}

// noServer shows a URL unless it has a login, a query or something like a connection string, where secrets are.
func noServer(text string) error {
	if strings.ContainsAny(text, "@?#%=") {
		text = "[...]"
	}
	return fmt.Errorf("endpoint %q: want https://HOST or http://HOST:PORT, and nothing more", text)
}

// Host is Server without a path.
func Host(text string) (*url.URL, error) {
	u, err := Server(text)
	if err == nil && u.Path != "" { // nobody would hear of it
		err = noServer(text)
	}
	return u, err
}

// Exposed tells whether others could read a secret on its way to a server, by its URL.
func Exposed(server string) bool {
	u, err := url.Parse(server)
	return err != nil || u.Scheme == "http" && !Loopback(u.Host)
}

// Loopback tells whether a host, with or without a port, is this machine, by its name.
func Loopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && addr.IsLoopback()
}
